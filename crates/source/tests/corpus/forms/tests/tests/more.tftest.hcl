run "outside" {
  module {
    source = "../tests-setup"
  }
}
