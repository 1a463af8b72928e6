# Simulates the DNS zone: a ConfigMap with the API of each cluster, and the service that runs on all clusters.
terraform {
  required_providers {
    kubectl = { source = "gavinbunney/kubectl" }
  }
}

variable "namespace" { type = string }
variable "service" { type = string }
variable "clusters" { type = list(string) }
variable "endpoints" { type = list(string) }
variable "server_ips" { type = list(list(string)) }

resource "kubectl_manifest" "zone" {
  yaml_body = yamlencode({
    apiVersion = "v1"
    kind       = "ConfigMap"
    metadata   = { name = "zone", namespace = var.namespace }
    data = merge(
      zipmap(var.endpoints, [for ips in var.server_ips : join(" ", ips)]),
      { (var.service) = join(" ", var.clusters) },
    )
  })
}
