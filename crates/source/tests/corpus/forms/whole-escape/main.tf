module "a" {
  source = "./c\u0061lled"
}
