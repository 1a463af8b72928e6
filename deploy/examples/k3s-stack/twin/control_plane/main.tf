# Simulates the servers of one cluster: one ConfigMap per server. A replacement has another address.
terraform {
  required_providers {
    kubectl = { source = "gavinbunney/kubectl" }
  }
}

variable "namespace" { type = string }
variable "cluster" { type = string }
variable "network" { type = string }

# Servers by name. A new generation replaces one.
variable "servers" { type = map(number) }

# A new generation creates a new join token.
variable "token" { type = number }

locals {
  names = sort(keys(var.servers))
  ips   = [for i, name in local.names : "${var.network}.${var.servers[name]}.${i + 1}"]
}

resource "kubectl_manifest" "server" {
  for_each = zipmap(local.names, local.ips)
  yaml_body = yamlencode({
    apiVersion = "v1"
    kind       = "ConfigMap"
    metadata   = { name = "${var.cluster}-server-${each.key}", namespace = var.namespace }
    data       = { ip = each.value }
  })
}

output "cluster" { value = var.cluster }
output "endpoint" { value = "api--${var.cluster}.example.com" }
output "server_ips" { value = local.ips }
output "join_token" {
  value     = sha256("${var.cluster} ${var.token}")
  sensitive = true
}
