# DNS records: the API of each cluster, and a service that runs on all clusters, behind the shared ALB of the region.
terraform {
  required_version = ">= 1.5"
  required_providers {
    aws = { source = "hashicorp/aws", version = "~> 5.0" }
  }
}

variable "region" { type = string }
variable "zone" { type = string }
variable "service" { type = string }
variable "alb" { type = string }
variable "priority" { type = number }
variable "endpoints" { type = list(string) }
variable "server_ips" { type = list(list(string)) }
variable "target_groups" { type = list(string) }

provider "aws" {
  region = var.region
}

data "aws_route53_zone" "zone" {
  name = var.zone
}

data "aws_lb" "shared" {
  name = var.alb
}

data "aws_lb_listener" "https" {
  load_balancer_arn = data.aws_lb.shared.arn
  port              = 443
}

resource "aws_route53_record" "api" {
  for_each = zipmap(var.endpoints, var.server_ips)
  zone_id  = data.aws_route53_zone.zone.zone_id
  name     = each.key
  type     = "A"
  ttl      = 60
  records  = each.value
}

resource "aws_lb_listener_rule" "service" {
  listener_arn = data.aws_lb_listener.https.arn
  priority     = var.priority

  condition {
    host_header { values = [var.service] }
  }

  action {
    type = "forward"
    forward {
      dynamic "target_group" {
        for_each = var.target_groups
        content { arn = target_group.value }
      }
    }
  }
}

resource "aws_route53_record" "service" {
  zone_id        = data.aws_route53_zone.zone.zone_id
  name           = var.service
  type           = "A"
  set_identifier = var.region

  latency_routing_policy { region = var.region }

  alias {
    name                   = data.aws_lb.shared.dns_name
    zone_id                = data.aws_lb.shared.zone_id
    evaluate_target_health = true
  }
}
