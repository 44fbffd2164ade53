"""The main room: experiments, their queue, their launch, and the pages that show them."""
