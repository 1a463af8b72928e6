# An Ingress, as in the cloud. Its destruction waits for the finalizers of the controller.
terraform {
  required_providers {
    kubectl = { source = "gavinbunney/kubectl" }
  }
}

variable "namespace" { type = string }
variable "name" { type = string }
variable "cluster_domain" { type = string }

resource "kubectl_manifest" "ingress" {
  wait = true
  yaml_body = yamlencode({
    apiVersion = "networking.k8s.io/v1"
    kind       = "Ingress"
    metadata   = { name = var.name, namespace = var.namespace }
    spec = {
      rules = [{
        host = "${var.name}.${var.cluster_domain}"
        http = { paths = [{
          path     = "/"
          pathType = "Prefix"
          backend  = { service = { name = var.name, port = { number = 80 } } }
        }] }
      }]
    }
  })
}

output "url" { value = "https://${var.name}.${var.cluster_domain}" }
