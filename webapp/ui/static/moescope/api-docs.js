// Draws the API's page from its schema, without a heading of its own: the page has one.
const place = document.getElementById("api-docs");
const withoutHeading = () => ({ wrapComponents: { InfoContainer: () => () => null } });
SwaggerUIBundle({ url: place.dataset.schema, domNode: place, deepLinking: true, validatorUrl: null, plugins: [withoutHeading] });
