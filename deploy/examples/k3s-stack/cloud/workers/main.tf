# Group of nodes that join a cluster.
terraform {
  required_version = ">= 1.5"
  required_providers {
    aws = { source = "hashicorp/aws", version = "~> 5.0" }
  }
}

variable "region" { type = string }
variable "cluster" { type = string }
variable "subnets" { type = list(string) }
variable "size" { type = number }
variable "endpoint" { type = string }
variable "security_group" { type = string }
variable "target_group" { type = string }
variable "join_token" {
  type      = string
  sensitive = true
}

provider "aws" {
  region = var.region
}

data "aws_ssm_parameter" "ami" {
  name = "/aws/service/canonical/ubuntu/server/24.04/stable/current/amd64/hvm/ebs-gp3/ami-id"
}

resource "aws_launch_template" "worker" {
  name_prefix   = "k3s-${var.cluster}-"
  image_id      = data.aws_ssm_parameter.ami.value
  instance_type = "t3.small"

  network_interfaces {
    associate_public_ip_address = true
    security_groups             = [var.security_group]
  }

  # The agent retries until the name resolves and the server responds.
  user_data = base64encode(<<-EOT
    #!/bin/sh
    curl -sfL https://get.k3s.io | K3S_URL='https://${var.endpoint}:6443' K3S_TOKEN='${var.join_token}' sh -
  EOT
  )
}

resource "aws_autoscaling_group" "workers" {
  name                = "k3s-${var.cluster}-workers"
  min_size            = var.size
  max_size            = var.size
  vpc_zone_identifier = var.subnets
  target_group_arns   = [var.target_group]

  launch_template {
    id      = aws_launch_template.worker.id
    version = aws_launch_template.worker.latest_version
  }

  instance_refresh {
    strategy = "Rolling"
  }
}
