# Applications of the cluster: Argo CD, which deploys all others.
terraform {
  required_version = ">= 1.5"
  required_providers {
    aws  = { source = "hashicorp/aws", version = "~> 5.0" }
    helm = { source = "hashicorp/helm", version = "~> 2.17" }
  }
}

variable "kubeconfig" {
  type = object({
    name   = string
    host   = string
    ca     = string
    region = string
  })
}

variable "argo_cd_version" { type = string }

provider "aws" {
  region = var.kubeconfig.region
}

data "aws_eks_cluster_auth" "cluster" {
  name = var.kubeconfig.name
}

provider "helm" {
  kubernetes {
    host                   = var.kubeconfig.host
    cluster_ca_certificate = var.kubeconfig.ca
    token                  = data.aws_eks_cluster_auth.cluster.token
  }
}

resource "helm_release" "argo_cd" {
  name             = "argo-cd"
  namespace        = "argocd"
  create_namespace = true
  repository       = "https://argoproj.github.io/argo-helm"
  chart            = "argo-cd"
  version          = var.argo_cd_version
}

output "argo_cd" { value = helm_release.argo_cd.version }
