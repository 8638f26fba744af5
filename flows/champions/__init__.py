"""Champions: freeze the rows on which a recipe's models are compared, promote a better model, roll back, publish."""
