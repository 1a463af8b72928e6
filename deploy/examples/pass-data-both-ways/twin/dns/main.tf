# Simulates a DNS zone with one record.
terraform {
  required_providers {
    kubectl = { source = "gavinbunney/kubectl" }
  }
}

variable "namespace" { type = string }
variable "name" { type = string }
variable "hostname" { type = string }

resource "kubectl_manifest" "zone" {
  yaml_body = yamlencode({
    apiVersion = "v1"
    kind       = "ConfigMap"
    metadata   = { name = "zone", namespace = var.namespace }
    data       = { (var.name) = var.hostname }
  })
}

output "url" { value = "https://${var.name}" }
