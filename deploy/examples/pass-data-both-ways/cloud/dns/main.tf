# DNS record of the shop, which points to the load balancer that the controller created.
terraform {
  required_version = ">= 1.5"
  required_providers {
    aws = { source = "hashicorp/aws", version = "~> 5.0" }
  }
}

variable "region" { type = string }
variable "zone" { type = string }
variable "name" { type = string }
variable "hostname" { type = string }

provider "aws" {
  region = var.region
}

data "aws_route53_zone" "zone" {
  name = var.zone
}

resource "aws_route53_record" "shop" {
  zone_id = data.aws_route53_zone.zone.zone_id
  name    = var.name
  type    = "CNAME"
  ttl     = 60
  records = [var.hostname]
}

output "url" { value = "https://${aws_route53_record.shop.fqdn}" }
