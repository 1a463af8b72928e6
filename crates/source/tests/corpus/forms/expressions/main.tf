variable "flag" {
  type    = bool
  default = true
}
locals {
  conditional = {
    "${1}" = (
      var.flag ?
      "a" :
      "b"
    )
    b = var.flag ? {
      c = "}"
      } : {
      c = "{"
    }
    c = (
      var.flag
      ? 1
      : 2
    )
  }
  conditionals = { for k in ["a", "b"] : k => k == "a" ? "}" :
    k == "b" ?
    "{" : "["
  }
  repeated = {
    a = 1
    a = 2
    "a" : 3, (local.key) = 4
  }
  key     = "k"
  list    = [for k, v in { a = [1] } : { (k) = v[*] } if length(v) > 0]
  map     = { for k in ["}", "{"] : k => { k = k }... }
  index   = local.list[0]["a"][0][0]
  splat   = local.list.*.a
  negated = !(-1 < 1 && 2 >= 1 || 1 != 2)
  math    = 1 + 2 * 3 / 4 % 5 - 6
  number  = 1.5e+3
  call    = max([1, 2]...)
  scoped  = upper("}")
}
module "a" {
  source = "./called"
  count  = var.flag ? 1 : 0
}
