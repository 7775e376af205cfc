"""European options: closed-form prices, Greeks by automatic differentiation, and a seeded Monte-Carlo price."""
