# Simulates a cloud role, whose ARN is known after its creation.
resource "terraform_data" "role" {}

output "role_arn" { value = "arn:aws:iam::123456789012:role/shop-${terraform_data.role.id}" }

# Values for the Argo CD Secret of a cluster.
output "name" { value = "in-cluster" }
output "server" { value = "https://kubernetes.default.svc" }
output "config" { value = jsonencode({ tlsClientConfig = { insecure = false } }) }
