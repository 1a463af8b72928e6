module "b" {
  source = "./called-2"
}