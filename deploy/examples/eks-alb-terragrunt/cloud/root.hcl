inputs = {
  region = "us-east-1"
}
