# Simulates a group of nodes that join a cluster: a ConfigMap with the join parameters.
terraform {
  required_providers {
    kubectl = { source = "gavinbunney/kubectl" }
  }
}

variable "namespace" { type = string }
variable "cluster" { type = string }
variable "endpoint" { type = string }
variable "join_token" {
  type      = string
  sensitive = true
}

resource "kubectl_manifest" "workers" {
  yaml_body = yamlencode({
    apiVersion = "v1"
    kind       = "ConfigMap"
    metadata   = { name = "${var.cluster}-workers", namespace = var.namespace }
    data = {
      server = "https://${var.endpoint}:6443"
      token  = substr(nonsensitive(sha256(var.join_token)), 0, 8)
    }
  })
}
