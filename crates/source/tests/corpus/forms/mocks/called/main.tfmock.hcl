mock_resource "test_resource" {}
