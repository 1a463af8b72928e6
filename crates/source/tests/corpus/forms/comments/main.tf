#!/usr/bin/env terraform
# module "not" { source = "./not-called" }
// module "not" { source = "./not-called" }
/* module "not" {
  source = "./not-called"
} */
/**/ locals /* { */ { /* } */ # {
  a = /* " */ 1 + /* } */ 2 // "
  b = [ # ]
    1,  // ]
    /* ] */ 2 /* , */ ,
  ]     # [
  c /* = */ = { # }
    d = 1 // }
    /* } */
    e /* = */ : 2 # }
  } /* { */
  f = (
    # )
    1 # (
  )
  g = "# // /* ${1 /* } */ + 2}"
  h = 8 / 2 / 2
}

/* a */ module /* b */ "a" /* c */ { # d
  # source = "./not-called"
  // source = "./not-called"
  /* source = "./not-called" */
  /* e */ source /* f */ = /* g */ "./called" /* h */ # i
} // j
/* ** / * /* **/
module "b" {
  source = "./called-2" // k
} # no newline at the end of the file
