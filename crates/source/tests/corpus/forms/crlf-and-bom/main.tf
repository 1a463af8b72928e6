# comment
locals {
  a = <<EOT
}
EOT
  b = {
    c = 1 /* 
 */
  }
  d = <<-EOT
    {
    EOT
}

module "a" {
  source = "./called"
}
