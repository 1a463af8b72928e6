inputs = {
  domain = "example.com"
}
