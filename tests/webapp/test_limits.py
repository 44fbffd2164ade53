import pytest


@pytest.mark.django_db
class TestBody:
    def test_a_body_at_the_limit_is_read(self, client):
        assert client.post("/sign-in/", b"x" * 1_000_000, content_type="text/plain").status_code == 200

    def test_a_larger_one_is_refused_with_both_figures(self, client):
        response = client.post("/sign-in/", b"x" * 1_000_001, content_type="text/plain")
        assert response.status_code == 413
        assert "The request has 1,000,001 bytes; at most 1,000,000 are accepted." in response.text

    def test_a_large_upload_is_refused_too(self, client):
        response = client.post("/sign-in/", b"x" * 10_000_000, content_type="multipart/form-data; boundary=b")
        assert response.status_code == 413
        assert "The request has 10,000,000 bytes" in response.text

    def test_a_length_that_is_no_number_is_taken_for_none(self, client):
        assert client.get("/sign-in/", CONTENT_LENGTH="many").status_code == 200
