module "c" {
  source = "./called-3"
} # end