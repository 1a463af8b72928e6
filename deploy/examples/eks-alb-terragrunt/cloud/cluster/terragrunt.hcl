include "root" {
  path = find_in_parent_folders("root.hcl")
}

inputs = {
  name               = "main"
  kubernetes_version = "1.33"
}
