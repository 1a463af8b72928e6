# Simulates the EKS cluster.
terraform {
  required_providers {
    kubectl = { source = "gavinbunney/kubectl" }
  }
}

variable "namespace" { type = string }
variable "name" { type = string }
variable "domain" { type = string }

resource "kubectl_manifest" "cluster" {
  yaml_body = yamlencode({
    apiVersion = "v1"
    kind       = "ConfigMap"
    metadata   = { name = "cluster", namespace = var.namespace }
    data       = { name = var.name }
  })
}

output "domain" { value = "${var.name}.${var.domain}" }
