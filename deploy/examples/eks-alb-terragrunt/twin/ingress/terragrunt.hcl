inputs = {
  name = "shop"
}
