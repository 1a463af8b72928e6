# Stands for a role of the cloud, whose ARN is known once it is made.
resource "terraform_data" "role" {}

output "role_arn" { value = "arn:aws:iam::123456789012:role/shop-${terraform_data.role.id}" }

# What Argo CD reads in the Secret of a cluster.
output "name" { value = "in-cluster" }
output "server" { value = "https://kubernetes.default.svc" }
output "config" { value = jsonencode({ tlsClientConfig = { insecure = false } }) }
