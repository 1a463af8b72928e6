terraform {
  required_providers {
    test = {
      source = "example.com/test/test"
    }
  }
}

variable "input" {}

variable "text" {}
