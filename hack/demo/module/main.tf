# A module that manages a real object: a ConfigMap in the cluster.
terraform {
  required_providers {
    kubectl = { source = "gavinbunney/kubectl" }
  }
}

variable "greeting" { type = string }

resource "kubectl_manifest" "greeting" {
  yaml_body = yamlencode({
    apiVersion = "v1"
    kind       = "ConfigMap"
    metadata   = { name = "greeting", namespace = "demo" }
    data       = { text = var.greeting }
  })
}

output "greeting" { value = "${var.greeting} from ${kubectl_manifest.greeting.name}" }
