# Prerequisites of the AWS Load Balancer Controller: its role, and the security group of its load balancers.
terraform {
  required_version = ">= 1.5"
  required_providers {
    aws = { source = "hashicorp/aws", version = "~> 5.0" }
  }
}

variable "region" { type = string }
variable "vpc_id" { type = string }
variable "oidc_provider_arn" { type = string }

provider "aws" {
  region = var.region
}

module "controller_role" {
  source  = "terraform-aws-modules/iam/aws//modules/iam-role-for-service-accounts-eks"
  version = "~> 5.0"

  role_name                              = "aws-load-balancer-controller"
  attach_load_balancer_controller_policy = true

  oidc_providers = {
    cluster = {
      provider_arn               = var.oidc_provider_arn
      namespace_service_accounts = ["kube-system:aws-load-balancer-controller"]
    }
  }
}

# The Ingress refers to it by its tag.
resource "aws_security_group" "alb" {
  name        = "shop-alb"
  description = "Load balancers of the shop"
  vpc_id      = var.vpc_id
  tags        = { Name = "shop-alb" }
}

resource "aws_vpc_security_group_ingress_rule" "https" {
  security_group_id = aws_security_group.alb.id
  cidr_ipv4         = "0.0.0.0/0"
  ip_protocol       = "tcp"
  from_port         = 443
  to_port           = 443
}

resource "aws_vpc_security_group_egress_rule" "all" {
  security_group_id = aws_security_group.alb.id
  cidr_ipv4         = "0.0.0.0/0"
  ip_protocol       = "-1"
}

output "controller_role_arn" { value = module.controller_role.iam_role_arn }
