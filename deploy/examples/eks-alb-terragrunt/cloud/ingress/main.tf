# The AWS Load Balancer Controller, and an Ingress for which it creates an ALB.
terraform {
  required_version = ">= 1.5"
  required_providers {
    aws        = { source = "hashicorp/aws", version = "~> 5.0" }
    helm       = { source = "hashicorp/helm", version = "~> 2.17" }
    kubernetes = { source = "hashicorp/kubernetes", version = "~> 2.36" }
  }
}

variable "region" { type = string }
variable "name" { type = string }
variable "host" { type = string }
variable "controller_version" { type = string }
variable "cluster" {
  type = object({
    name                = string
    host                = string
    ca                  = string
    vpc_id              = string
    controller_role_arn = string
  })
}

provider "aws" {
  region = var.region
}

data "aws_eks_cluster_auth" "cluster" {
  name = var.cluster.name
}

provider "helm" {
  kubernetes {
    host                   = var.cluster.host
    cluster_ca_certificate = var.cluster.ca
    token                  = data.aws_eks_cluster_auth.cluster.token
  }
}

provider "kubernetes" {
  host                   = var.cluster.host
  cluster_ca_certificate = var.cluster.ca
  token                  = data.aws_eks_cluster_auth.cluster.token
}

resource "helm_release" "controller" {
  name       = "aws-load-balancer-controller"
  namespace  = "kube-system"
  repository = "https://aws.github.io/eks-charts"
  chart      = "aws-load-balancer-controller"
  version    = var.controller_version

  values = [yamlencode({
    clusterName = var.cluster.name
    region      = var.region
    vpcId       = var.cluster.vpc_id
    serviceAccount = {
      name        = "aws-load-balancer-controller"
      annotations = { "eks.amazonaws.com/role-arn" = var.cluster.controller_role_arn }
    }
  })]
}

# Destroyed before the controller, which removes the ALB first.
resource "kubernetes_ingress_v1" "shop" {
  depends_on             = [helm_release.controller]
  wait_for_load_balancer = true

  metadata {
    name      = var.name
    namespace = "default"
    annotations = {
      "alb.ingress.kubernetes.io/scheme"      = "internet-facing"
      "alb.ingress.kubernetes.io/target-type" = "ip"
    }
  }

  spec {
    ingress_class_name = "alb"
    rule {
      host = var.host
      http {
        path {
          path      = "/"
          path_type = "Prefix"
          backend {
            service {
              name = var.name
              port { number = 80 }
            }
          }
        }
      }
    }
  }
}

output "hostname" { value = kubernetes_ingress_v1.shop.status[0].load_balancer[0].ingress[0].hostname }
