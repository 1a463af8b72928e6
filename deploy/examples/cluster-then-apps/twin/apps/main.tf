# Simulates the applications of the cluster. The provider uses only the outputs of the other module.
terraform {
  required_providers {
    kubectl = { source = "gavinbunney/kubectl" }
  }
}

variable "namespace" { type = string }
variable "apps" { type = set(string) }
variable "kubeconfig" {
  type = object({
    name  = string
    host  = string
    ca    = string
    token = string
  })
  sensitive = true
}

provider "kubectl" {
  host                   = var.kubeconfig.host
  cluster_ca_certificate = var.kubeconfig.ca
  token                  = var.kubeconfig.token
  load_config_file       = false
}

resource "kubectl_manifest" "app" {
  for_each = var.apps
  yaml_body = yamlencode({
    apiVersion = "v1"
    kind       = "ConfigMap"
    metadata   = { name = "app-${each.key}", namespace = var.namespace }
    data       = { cluster = nonsensitive(var.kubeconfig.name) }
  })
}
