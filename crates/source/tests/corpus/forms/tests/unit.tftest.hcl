run "setup" {
  module {
    source = "./called"
  }
}

run "plan" {
  command = plan

  assert {
    condition     = output.a == 1
    error_message = "source = \"./not-called\""
  }
}
