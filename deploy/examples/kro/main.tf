# Folder website of the repository. Replace the local values by your resources.
variable "name" { type = string }

locals {
  bucket = "${var.name}-assets"
}

resource "terraform_data" "bucket" {
  input = local.bucket
}

output "url" { value = "https://${var.name}.example.com" }
output "bucket" { value = terraform_data.bucket.output }
output "replicas" { value = 2 }
