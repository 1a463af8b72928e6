inputs = {
  name = "main"
}
