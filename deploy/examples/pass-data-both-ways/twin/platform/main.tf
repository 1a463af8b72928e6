# Simulates the prerequisites of the load balancer controller: its role and a security group.
terraform {
  required_providers {
    kubectl = { source = "gavinbunney/kubectl" }
  }
}

variable "namespace" { type = string }

resource "kubectl_manifest" "platform" {
  yaml_body = yamlencode({
    apiVersion = "v1"
    kind       = "ConfigMap"
    metadata   = { name = "platform", namespace = var.namespace }
    data       = { security_group = "shop-alb" }
  })
}
