mock_provider "test" {
  source = "./called"
}

run "plan" {
  command = plan
}
