include "root" {
  path = find_in_parent_folders("root.hcl")
}

inputs = {
  name               = "shop"
  host               = "shop.example.com"
  controller_version = "1.13.0"
}
