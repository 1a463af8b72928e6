locals {
  plain = <<EOT
} " ${local.name} $${ %%{ \" /* # // <<OTHER
 EOT2
module "not" {
  source = "./not-called"
}
EOT
  indented = <<-EOT
    }
  module "not" {
    source = "./not-called"
  }
      EOT
  in_interpolation = "${<<EOT
}"
EOT
  }"
  nested = <<A
${join("}", [<<B
A
${"}"}
B
, "A"])} A
A
  in_call = upper(<<-EOT
    ) }
  EOT
  )
  in_object = {
    a = <<-EOT
      }
    EOT
    b = [<<-ONE
      ]
    ONE
      , <<-TWO
      ]
    TWO
    ]
  }
  empty = <<EOT
EOT
  spaces = <<EOT
}
  EOT 
  comparison = 1 < 2
  name       = "EOT"
}
module "a" {
  source = "./called"
}
