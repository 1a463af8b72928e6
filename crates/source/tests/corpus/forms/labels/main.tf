resource terraform_data "quoted" { input = "}" }
resource "terraform_data" unquoted { input = { a = "b" } }
resource "terraform_data" "nested" {
  lifecycle { ignore_changes = [input] }
  provisioner "local-exec" {
    command = "echo '}'"
    environment = { source = "./not-called" }
  }
  connection {
    type = "ssh"
    host = "source"
  }
}
locals { ünïcode-1_ = { größe = "ß", "名前" = "}" } }
output ünïcode { value = local.ünïcode-1_ }
module unquoted { source = "./called" }
module "one-line" { source = "./called-2" }
