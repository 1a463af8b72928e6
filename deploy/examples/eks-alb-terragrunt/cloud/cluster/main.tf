# An EKS cluster, and the role of the AWS Load Balancer Controller in it.
terraform {
  required_version = ">= 1.5"
  required_providers {
    aws = { source = "hashicorp/aws", version = "~> 5.0" }
  }
}

variable "region" { type = string }
variable "name" { type = string }
variable "kubernetes_version" { type = string }

provider "aws" {
  region = var.region
}

data "aws_availability_zones" "here" {
  state = "available"
}

module "vpc" {
  source  = "terraform-aws-modules/vpc/aws"
  version = "~> 5.0"

  name               = var.name
  cidr               = "10.0.0.0/16"
  azs                = slice(data.aws_availability_zones.here.names, 0, 2)
  public_subnets     = ["10.0.0.0/24", "10.0.1.0/24"]
  private_subnets    = ["10.0.16.0/20", "10.0.32.0/20"]
  enable_nat_gateway = true
  single_nat_gateway = true

  # The controller finds the subnets of load balancers by these tags.
  public_subnet_tags  = { "kubernetes.io/role/elb" = 1 }
  private_subnet_tags = { "kubernetes.io/role/internal-elb" = 1 }
}

module "eks" {
  source  = "terraform-aws-modules/eks/aws"
  version = "~> 20.0"

  cluster_name    = var.name
  cluster_version = var.kubernetes_version
  vpc_id          = module.vpc.vpc_id
  subnet_ids      = module.vpc.private_subnets

  cluster_endpoint_public_access           = true
  enable_cluster_creator_admin_permissions = true

  eks_managed_node_groups = {
    default = {
      instance_types = ["t3.large"]
      min_size       = 2
      max_size       = 4
      desired_size   = 2
    }
  }
}

module "controller_role" {
  source  = "terraform-aws-modules/iam/aws//modules/iam-role-for-service-accounts-eks"
  version = "~> 5.0"

  role_name                              = "${var.name}-load-balancer-controller"
  attach_load_balancer_controller_policy = true

  oidc_providers = {
    cluster = {
      provider_arn               = module.eks.oidc_provider_arn
      namespace_service_accounts = ["kube-system:aws-load-balancer-controller"]
    }
  }
}

output "cluster" {
  value = {
    name                = module.eks.cluster_name
    host                = module.eks.cluster_endpoint
    ca                  = base64decode(module.eks.cluster_certificate_authority_data)
    vpc_id              = module.vpc.vpc_id
    controller_role_arn = module.controller_role.iam_role_arn
  }
}
