# Simulates the cluster: a ConfigMap, and access to the cluster that contains it.
terraform {
  required_providers {
    kubectl = { source = "gavinbunney/kubectl" }
  }
}

variable "namespace" { type = string }
variable "name" { type = string }
variable "host" { type = string }
variable "ca" { type = string }
variable "token" {
  type      = string
  sensitive = true
}

provider "kubectl" {
  host                   = var.host
  cluster_ca_certificate = var.ca
  token                  = var.token
  load_config_file       = false
}

resource "kubectl_manifest" "cluster" {
  yaml_body = yamlencode({
    apiVersion = "v1"
    kind       = "ConfigMap"
    metadata   = { name = "cluster", namespace = var.namespace }
    data       = { name = var.name }
  })
}

output "kubeconfig" {
  value = {
    name  = var.name
    host  = var.host
    ca    = var.ca
    token = var.token
  }
  sensitive = true
}
