module "a" {
  source = "./called-2"
}
