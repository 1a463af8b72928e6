module "a" {
  source = ("./called")
}
