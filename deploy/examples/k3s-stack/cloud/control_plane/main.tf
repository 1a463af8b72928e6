# Servers of one k3s cluster on EC2. They are identical and stateless: the cluster uses an external datastore
# (https://docs.k3s.io/datastore/ha), so each server can be replaced.
terraform {
  required_version = ">= 1.5"
  required_providers {
    aws    = { source = "hashicorp/aws", version = "~> 5.0" }
    random = { source = "hashicorp/random", version = "~> 3.6" }
  }
}

variable "region" { type = string }
variable "zone" { type = string }
variable "cluster" { type = string }
variable "vpc_id" { type = string }
variable "alb_security_group" { type = string }

# Servers by name. A new generation replaces one.
variable "servers" {
  type = map(object({ subnet = string, generation = number }))
}

# A new generation creates a new join token.
variable "token" { type = number }

# Endpoint of the PostgreSQL or MySQL datastore of k3s.
variable "datastore_endpoint" {
  type      = string
  sensitive = true
}

provider "aws" {
  region = var.region
}

locals {
  endpoint = "api--${var.cluster}.${var.zone}"
}

data "aws_ssm_parameter" "ami" {
  name = "/aws/service/canonical/ubuntu/server/24.04/stable/current/amd64/hvm/ebs-gp3/ami-id"
}

resource "random_password" "servers" {
  length  = 32
  special = false
}

resource "random_password" "workers" {
  length  = 32
  special = false
  keepers = { generation = var.token }
}

resource "aws_security_group" "nodes" {
  name   = "k3s-${var.cluster}"
  vpc_id = var.vpc_id
}

resource "aws_vpc_security_group_ingress_rule" "among_nodes" {
  security_group_id            = aws_security_group.nodes.id
  referenced_security_group_id = aws_security_group.nodes.id
  ip_protocol                  = "-1"
}

resource "aws_vpc_security_group_ingress_rule" "from_alb" {
  security_group_id            = aws_security_group.nodes.id
  referenced_security_group_id = var.alb_security_group
  ip_protocol                  = "tcp"
  from_port                    = 80
  to_port                      = 80
}

resource "aws_vpc_security_group_ingress_rule" "api" {
  security_group_id = aws_security_group.nodes.id
  cidr_ipv4         = "0.0.0.0/0"
  ip_protocol       = "tcp"
  from_port         = 6443
  to_port           = 6443
}

resource "aws_vpc_security_group_egress_rule" "all" {
  security_group_id = aws_security_group.nodes.id
  cidr_ipv4         = "0.0.0.0/0"
  ip_protocol       = "-1"
}

resource "terraform_data" "generation" {
  for_each = var.servers
  input    = each.value.generation
}

resource "aws_instance" "server" {
  for_each                    = var.servers
  ami                         = data.aws_ssm_parameter.ami.value
  instance_type               = "t3.small"
  subnet_id                   = each.value.subnet
  vpc_security_group_ids      = [aws_security_group.nodes.id]
  associate_public_ip_address = true
  user_data_replace_on_change = true
  user_data                   = <<-EOT
    #!/bin/sh
    curl -sfL https://get.k3s.io | sh -s - server \
      --token '${random_password.servers.result}' \
      --agent-token '${random_password.workers.result}' \
      --datastore-endpoint '${var.datastore_endpoint}' \
      --tls-san '${local.endpoint}'
  EOT
  tags                        = { Name = "k3s-${var.cluster}-${each.key}" }

  lifecycle {
    ignore_changes       = [ami]
    replace_triggered_by = [terraform_data.generation[each.key]]
  }
}

resource "aws_lb_target_group" "http" {
  name     = "k3s-${var.cluster}"
  vpc_id   = var.vpc_id
  port     = 80
  protocol = "HTTP"

  # Traefik responds with 404 to a request for an unknown host: it is healthy.
  health_check { matcher = "200-404" }
}

resource "aws_lb_target_group_attachment" "server" {
  for_each         = aws_instance.server
  target_group_arn = aws_lb_target_group.http.arn
  target_id        = each.value.id
}

output "endpoint" { value = local.endpoint }
output "server_ips" { value = [for name in sort(keys(var.servers)) : aws_instance.server[name].public_ip] }
output "security_group" { value = aws_security_group.nodes.id }
output "target_group" { value = aws_lb_target_group.http.arn }
output "join_token" {
  value     = random_password.workers.result
  sensitive = true
}
