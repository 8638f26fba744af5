"""Champions: a recipe's champion is the model that its users should get.

The modules keep test rows for comparisons (frozen rows), compare models on them, promote a better model to champion,
roll back to an earlier champion, and publish models.
"""
