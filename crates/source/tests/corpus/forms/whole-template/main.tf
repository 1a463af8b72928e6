module "a" {
  source = "${"./called"}"
}
