module "inputs" {
  providers = {
    test = test
  }
  input = {
    source = "./not-called"
    module = { source = "./not-called" }
  }
  text   = "source = \"./not-called\""
  source = "./called"
  depends_on = [
    module.other,
  ]
}

module "other" {
  source = "./called/../called-2/./"
}

module "parent" {
  source = "..//module-blocks/called-3"
}

module "again" {
  source = "./called-2"
}

moved {
  from = module.source
  to   = module.other
}
