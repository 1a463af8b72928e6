# Role of the pods of the shop, by their ServiceAccount.
terraform {
  required_version = ">= 1.5"
  required_providers {
    aws = { source = "hashicorp/aws", version = "~> 5.0" }
  }
}

variable "region" { type = string }
variable "oidc_provider_arn" { type = string }
variable "bucket" { type = string }

provider "aws" {
  region = var.region
}

data "aws_iam_policy_document" "pictures" {
  statement {
    actions   = ["s3:GetObject", "s3:PutObject"]
    resources = ["arn:aws:s3:::${var.bucket}/*"]
  }
}

resource "aws_iam_policy" "pictures" {
  name   = "shop-pictures"
  policy = data.aws_iam_policy_document.pictures.json
}

module "role" {
  source  = "terraform-aws-modules/iam/aws//modules/iam-role-for-service-accounts-eks"
  version = "~> 5.0"

  role_name        = "shop"
  role_policy_arns = { pictures = aws_iam_policy.pictures.arn }

  oidc_providers = {
    cluster = {
      provider_arn               = var.oidc_provider_arn
      namespace_service_accounts = ["shop:shop"]
    }
  }
}

output "role_arn" { value = module.role.iam_role_arn }

# Values for the Argo CD Secret of a cluster.
output "name" { value = "in-cluster" }
output "server" { value = "https://kubernetes.default.svc" }
output "config" { value = jsonencode({ tlsClientConfig = { insecure = false } }) }
