# The cluster, without applications.
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

# Content of a kubeconfig. Tokens of EKS expire after minutes: clients request a token by the name of the cluster.
output "kubeconfig" {
  value = {
    name   = module.eks.cluster_name
    host   = module.eks.cluster_endpoint
    ca     = base64decode(module.eks.cluster_certificate_authority_data)
    region = var.region
  }
}
