module "a" {
  source = "./missing"
}
