variable "names" {
  default = ["a"]
}
locals {
  nested  = "${upper("${join("}", ["\"}", "${"{"}"])}")} \\"
  escapes = "$${ %%{ $ % $$ %% \" \\ \t \u007d \U0000007d $"
  dollar  = "costs $5, 5% of $${x} and $$${local.one}"
  one     = 1
  trimmed = "${~ local.one ~}"
  object  = "${{ a = "}" }["a"]}"
  lines = "${
    local.one
  }"
  directives = <<-EOT
    %{ if local.one == 1 ~}
    one }
    %{ else ~}
    other {
    %{ endif ~}
    %{ for name in var.names ~}
    ${name} "
    %{~ endfor }
  EOT
  inline = "%{ if local.one == 1 }{%{ else }}%{ endif }%{~ for n in var.names ~}{${n}%{ endfor }"
}
module "a" {
  source = "./called"
}
